"""What people look at: traces, pictures and reports."""
