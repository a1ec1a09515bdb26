"""Views as web pages: a folder of files, or one file, that needs no network."""
