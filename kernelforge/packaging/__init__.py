"""A correct attempt as a pip-installable package with a torch operator: what is written, and what runs there."""
