"""History of the operator's objects: every shape that each had, and each deletion."""

from __future__ import annotations

import copy
from typing import Any

from lbg_operator.kube.api import Object
from lbg_operator.kube.kinds import BROKER, EVENT, GROUP, POD, Kind
from lbg_operator.resources.names import GROUP_LABEL
from testing.kubernetes.fake_cluster import FakeCluster

NO_CHILDREN = frozenset({BROKER, EVENT, GROUP, POD})
Place = tuple[str, str, str]
"""Kind, namespace and name."""


class ChildHistory:
    """The shapes of each child from `begin` on: spec or data and labels, without replicas, or None where it is gone.

    `deleted_pods`: consumer pods that somebody deleted by a request.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.shapes: dict[Place, list[Any]] = {}
        cluster.watchers.append(self._told)

    def begin(self) -> None:
        """Forget what was: what is now is the beginning."""
        self.shapes = {
            _place_of(kind, one): [shape_of(one)]
            for (kind, _, _), one in self._cluster.objects.items()
            if _is_child(kind, one)
        }
        self._from = len(self._cluster.changed)

    def changed(self) -> dict[Place, list[Any]]:
        """The children that had more shapes than one, or are new."""
        return {place: shapes for place, shapes in self.shapes.items() if len(shapes) != 1}

    @property
    def deleted_pods(self) -> list[str]:
        told = self._cluster.changed[self._from :]
        return [name for verb, kind, name in told if (verb, kind) == ("delete", POD.kind)]

    def _told(self, kind: Kind, seen: Object, is_gone: bool) -> None:
        if not _is_child(kind, seen):
            return
        shape = None if is_gone else shape_of(seen)
        shapes = self.shapes.setdefault(_place_of(kind, seen), [None])
        if shapes[-1] != shape:
            shapes.append(shape)


def shape_of(seen: Object) -> Object:
    """Fields that users and the operator set, but for replicas."""
    kept = {name: copy.deepcopy(value) for name, value in seen.items() if name not in ("metadata", "status")}
    kept.get("spec", {}).pop("replicas", None)
    kept["labels"] = seen["metadata"].get("labels")
    return kept


def _is_child(kind: Kind, seen: Object) -> bool:
    return kind not in NO_CHILDREN and GROUP_LABEL in seen["metadata"].get("labels", {})


def _place_of(kind: Kind, seen: Object) -> Place:
    return kind.kind, seen["metadata"]["namespace"], seen["metadata"]["name"]
