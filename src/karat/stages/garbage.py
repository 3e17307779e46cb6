"""Where the stages find `fewer_collections`."""

from karat.garbage import fewer_collections as fewer_collections
