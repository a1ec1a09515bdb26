"""Parts of prompts: fenced text, attempts, profiles, and the template environment."""
