"""The memory systems that come with karat, and adapters to others."""
