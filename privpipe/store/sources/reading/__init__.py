"""What all source formats share: files, text, roles of columns, tables in memory."""
