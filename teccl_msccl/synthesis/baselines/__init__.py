"""The field's algorithms as schedules: one a file; `plan` puts them on links, `search` chooses their chunks."""
