"""What prompts are made of: fenced text, views of attempts and profiles, and the templates' environment."""
