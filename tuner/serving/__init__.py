"""The live pages of `tuner serve`: runs, reports, comparisons and history from the database."""
