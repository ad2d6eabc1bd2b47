"""PostgreSQL, through psycopg 3. All SQL of the project is in this folder."""
