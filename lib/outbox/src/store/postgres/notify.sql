-- Optional: wakes pollers that listen as soon as rows are committed. Without it they look once per poll.
-- NOTIFY makes commits wait for each other; leave it out where very many transactions a second write to the outbox.
CREATE OR REPLACE FUNCTION onward_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_notify('onward_outbox', ''); RETURN NULL; END $$;
DROP TRIGGER IF EXISTS onward_outbox_notify ON onward_outbox;
CREATE TRIGGER onward_outbox_notify AFTER INSERT ON onward_outbox
  FOR EACH STATEMENT EXECUTE FUNCTION onward_outbox_notify();
