"""The native API over HTTP: application, authorisation, limits and process."""
