"""Studies of what a model can write: the proficiency study of OpenAI Codex, with any provider."""
