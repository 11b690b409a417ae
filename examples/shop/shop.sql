-- The database of docs/connect.md: a role that reads changes, and a table with a row.
ALTER SYSTEM SET wal_level = 'logical';
CREATE ROLE firth LOGIN REPLICATION PASSWORD 's3cret';
CREATE DATABASE shop OWNER firth;
\connect shop
SET ROLE firth;
CREATE TABLE orders (id int PRIMARY KEY, tenant_id text NOT NULL, item text, total int);
-- A delete tells the tenant only if old rows are told in full.
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO orders VALUES (1, 'acme', 'coffee', 200);
