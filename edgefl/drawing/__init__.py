"""What people see: charts, pages and tables of text."""
