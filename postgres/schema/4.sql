-- The term under which output was admitted: what a former leader still wants to write does not come behind what its heir
-- has written.
alter table onward.output add column term bigint not null default 0;
