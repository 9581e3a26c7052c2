"""Listings: the columns of each are defined once, for terminals, files, programs and live pages."""
