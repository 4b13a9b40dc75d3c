-- Whether a manager that follows reaches the one that leads: a leader that no other reaches loses the seat.
alter table onward.member add column reaches_leader boolean not null default true;
