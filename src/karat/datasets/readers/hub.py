"""Rows of a dataset on the Hugging Face hub, through the package `datasets`, of a revision that is recorded.

A folder may be given instead of a repository: with data files, or written by `save_to_disk`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from karat.datasets.transformations import addressed_media
from karat.errors import DataError, MissingDependency, wording

SAVED = ("state.json", "dataset_dict.json")
"""What a folder that `save_to_disk` wrote has: of one split, and of several."""


def hub_rows(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of `{repo_id, config_name, split, revision, streaming, shard}`, split after split."""
    datasets = _datasets()
    splits = config.get("split", "train")
    for split in splits if isinstance(splits, list) else [splits]:
        try:
            loaded = _load(datasets, config, split)
        except Exception as error:
            where = "" if _is_folder(config) else " from the hub"
            raise DataError(
                f"{config['repo_id']} (split {split}) cannot be loaded{where}: {type(error).__name__}: {error}"
            ) from error
        shard = config.get("shard")
        if isinstance(shard, Mapping):
            loaded = loaded.shard(num_shards=int(shard["num_shards"]), index=int(shard.get("index", 0)))
        loaded, media = _without_decoding(datasets, loaded)
        for row in loaded:  # the dataset converts the rows to JSON
            yield {str(k): addressed_media(v) if k in media else v for k, v in row.items()}


def _without_decoding(datasets: Any, loaded: Any) -> tuple[Any, set[str]]:
    """The data with images and sounds as files, and the columns that have some: decoding needs Pillow and torch."""
    kinds = tuple(getattr(datasets, name) for name in ("Image", "Audio") if hasattr(datasets, name))

    def without_decoding(feature: object) -> Any:
        if isinstance(feature, kinds):
            made = copy.copy(feature)
            made.decode = False
            return made
        if isinstance(feature, dict):
            return {name: without_decoding(each) for name, each in feature.items()}
        if isinstance(feature, list):
            return [without_decoding(each) for each in feature]
        if hasattr(feature, "feature"):
            made = copy.copy(feature)
            made.feature = without_decoding(feature.feature)
            return made
        return feature

    media = set()
    for name, feature in dict(getattr(loaded, "features", None) or {}).items():
        plain = without_decoding(feature)
        if plain != feature:
            media.add(name)
            loaded = loaded.cast_column(name, plain)
    return loaded, media


def _load(datasets: Any, config: Mapping[str, Any], split: Any) -> Any:
    """Load one split with the `datasets` package."""
    if _is_folder(config) and any((Path(config["repo_id"]) / name).is_file() for name in SAVED):
        saved = datasets.load_from_disk(config["repo_id"])
        return saved[split] if isinstance(saved, Mapping) else saved
    return datasets.load_dataset(
        config["repo_id"],
        config.get("config_name"),
        split=split,
        revision=config.get("revision"),
        streaming=bool(config.get("streaming", False)),
        token=os.environ.get("HF_TOKEN"),
    )


def _is_folder(config: Mapping[str, Any]) -> bool:
    return Path(str(config["repo_id"])).is_dir()


def resolved_revision(config: Mapping[str, Any]) -> str | None:
    """The commit that a revision names now, so that the same data can be had again; None when it cannot be asked.

    A folder has none: what its data are is the dataset's own id.
    """
    if _is_folder(config):
        return None
    try:
        from huggingface_hub import HfApi
    except ImportError:
        return None
    try:
        info = HfApi().dataset_info(config["repo_id"], revision=config.get("revision"))
    except Exception as error:
        raise DataError(
            f"{config['repo_id']} cannot be found on the hub: {type(error).__name__}: {error}"
            f" (give local data instead{wording(' with --data FILE', '')})"
        ) from error
    return str(info.sha)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingDependency("datasets", "hf", "reading from the Hugging Face hub") from None
    return datasets
