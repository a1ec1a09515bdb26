"""The native API over HTTP: the application, who may ask, what one request may take, and the process around it."""
