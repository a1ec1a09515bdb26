"""The native API, one router per kind of thing."""
