"""Routes of the native API, one router per resource."""
