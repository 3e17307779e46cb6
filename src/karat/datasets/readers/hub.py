"""Rows of a dataset on the Hugging Face hub, through the package `datasets`, of a revision that is recorded.

A folder may be given instead of a repository: with data files, or written by `save_to_disk`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from karat.errors import DataError, MissingDependency

SAVED = ("state.json", "dataset_dict.json")
"""What a folder that `save_to_disk` wrote has: of one split, and of several."""


def hub_rows(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of `{repo_id, config_name, split, revision, streaming, shard}`, split after split."""
    datasets = _datasets()
    splits = config.get("split", "train")
    for split in splits if isinstance(splits, list) else [splits]:
        try:
            loaded = _loaded(datasets, config, split)
        except Exception as error:
            where = "" if _is_folder(config) else " from the hub"
            raise DataError(
                f"{config['repo_id']} (split {split}) cannot be loaded{where}: {type(error).__name__}: {error}"
            ) from error
        shard = config.get("shard")
        if isinstance(shard, Mapping):
            loaded = loaded.shard(num_shards=int(shard["num_shards"]), index=int(shard.get("index", 0)))
        for row in loaded:
            yield {str(key): value for key, value in row.items()}  # the dataset converts them to JSON


def _loaded(datasets: Any, config: Mapping[str, Any], split: Any) -> Any:
    """One split, as `datasets` has it."""
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
            " (give local data instead with --data FILE)"
        ) from error
    return str(info.sha)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingDependency("datasets", "hf", "reading from the Hugging Face hub") from None
    return datasets
