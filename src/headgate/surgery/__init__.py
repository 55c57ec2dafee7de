"""Gates on channels, and cutting what they closed: the only folder that knows both."""
