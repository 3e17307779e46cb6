"""A local web viewer of a store: aiohttp serves a JSON API and the pages that are drawn from it. It never writes."""
