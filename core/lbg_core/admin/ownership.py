"""Owner of a group: who may change it, as the header `lbg-owner` of its record states.

The header is `by-hand`, or `kubernetes/CLUSTER-UID/OBJECT-UID`, where the first is the UID of namespace kube-system and
the second that of the LoadBalancedGroup. A record without it is by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lbg_core.group import ONE_USER, GroupSpec, Publishers, SpecError

BY_HAND = "by-hand"

CONSUMPTION = "consumption"
"""Of what is paused: members start no new calls."""

INGRESS = "ingress"
"""Of what is paused: nobody may publish to the group."""

KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Record:
    """Message with a group's attributes. `owner` is empty where it was not read. `paused`: words for what is
    paused, `CONSUMPTION` and `INGRESS`; None: not read.
    `has_parking`: the group has a queue for the messages of parked keys. `parked_from`: the `SnapshotPlace` from which
    on the stream of parked keys is read; empty: from its first entry on. `key_move`: id of the change of the number of
    queues that is on its way, with a stream of its own (`lbg_core.group.key_moves`); empty without one.
    `object_name`: NAMESPACE/NAME of the LoadBalancedGroup, where the group has a name of its own; else empty."""

    text: str
    owner: str = ""
    publishers: Publishers = ONE_USER
    paused: frozenset[str] | None = frozenset()
    has_parking: bool = False
    parked_from: str = ""
    key_move: str = ""
    object_name: str = ""

    @property
    def is_paused(self) -> bool:
        """True if members are to start no new calls."""
        return self.paused is not None and CONSUMPTION in self.paused

    @property
    def is_ingress_paused(self) -> bool:
        """True if nobody may publish."""
        return self.paused is not None and INGRESS in self.paused

    def spec_of(self, group: str) -> GroupSpec | None:
        """The group's attributes; None for a text that has none."""
        try:
            return GroupSpec.from_record(self.text, name=group)
        except SpecError:
            return None


def paused_words(words: frozenset[str] | None, word: str = CONSUMPTION, *, is_paused: bool) -> frozenset[str]:
    """The words of a record that states whether `word` is paused; what else is paused stays so."""
    return (words or frozenset()) - {word} | ({word} if is_paused else frozenset())


def kubernetes_owner(cluster_uid: str, object_uid: str) -> str:
    """Owner of a group that a Kubernetes object asks for. `cluster_uid` is empty where it could not be read."""
    return f"{KUBERNETES}/{cluster_uid}/{object_uid}"


def is_of_kubernetes(owner: str) -> bool:
    return owner.startswith(f"{KUBERNETES}/")


def is_same_owner(one: str, other: str) -> bool:
    """True if both are one owner. A cluster that could not be read is not compared: objects' UIDs are unique."""
    if not (is_of_kubernetes(one) and is_of_kubernetes(other)):
        return one == other
    one_cluster, one_object = _parts(one)
    other_cluster, other_object = _parts(other)
    return one_object == other_object and (
        one_cluster == other_cluster or not one_cluster or not other_cluster
    )


def owner_text(owner: str) -> str:
    """An owner for people."""
    if owner == BY_HAND:
        return "by hand"
    if not is_of_kubernetes(owner):
        return owner or "not read"
    cluster, uid = _parts(owner)
    return f"Kubernetes object {uid} of cluster {cluster or 'unknown'}"


def _parts(owner: str) -> tuple[str, str]:
    cluster, _, uid = owner.removeprefix(f"{KUBERNETES}/").partition("/")
    return cluster, uid


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of `owner` to a group.

    - `password`: by which an object of Kubernetes shows that a group that lost its record is its own: its user's, from
      the object's Secret.
    - `adopts`: a group of another owner is taken over.
    - `remedy`: what to do where the group is another owner's.
    - `object_name`: of the record that the claim makes.
    """

    owner: str = BY_HAND
    password: str | None = field(default=None, repr=False)
    adopts: bool = False
    remedy: str = "`lbg group adopt` takes it over"
    object_name: str = ""

    def owner_after(self, record: Record | None) -> str:
        """Owner of a group that had `record`, once the claim is accepted. The command line leaves it as it is."""
        if record is None or not is_of_kubernetes(self.owner):
            return self.owner if record is None else record.owner
        is_known = is_same_owner(record.owner, self.owner)
        return record.owner if is_known and _parts(record.owner)[0] else self.owner

    def object_after(self, record: Record | None) -> str:
        """The same for the name of the object."""
        return self.object_name if record is None or is_of_kubernetes(self.owner) else record.object_name


CLAIM_BY_HAND = Claim()
