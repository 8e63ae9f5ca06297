"""The cache against a model of the cluster: whatever order watches, lists and answers come in, it ends up the same."""

import hashlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_operator import kinds, labels
from halffull_operator.cache import Cache, News, object_key
from halffull_operator.kinds import Kind, Manifest

SERVICE = kinds.named("v1", "Service")


def serving(
    name: str = "llama", *, uid: str = "u1", version: int = 1, generation: int = 1, **metadata: Any
) -> Manifest:
    return {
        "apiVersion": kinds.SERVING.api_version,
        "kind": kinds.SERVING.kind,
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid,
            "resourceVersion": str(version),
            "generation": generation,
            **metadata,
        },
    }


def child(
    name: str = "llama-gateway", *, kind: Kind = SERVICE, uid: str = "c1", version: int = 2, base: str = "llama"
) -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {labels.SERVING: base},
            "managedFields": [{"manager": "x"}],
        },
    }


def test_a_new_serving_and_an_edited_one_are_urgent_and_its_status_is_not() -> None:
    cache = Cache()
    assert cache.see(kinds.SERVING, serving()) == News("u1", edited=True)
    assert cache.see(kinds.SERVING, serving(version=2, generation=2)) == News("u1", edited=True)
    assert cache.see(kinds.SERVING, serving(version=3, generation=2)) == News("u1")
    assert cache.see(kinds.SERVING, serving(version=4, generation=2, annotations={"a": "b"})) == News("u1", edited=True)
    assert cache.see(
        kinds.SERVING, serving(version=5, generation=2, annotations={"a": "b"}, deletionTimestamp="now")
    ) == News("u1", edited=True)


def test_what_is_old_or_known_is_no_news() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving(version=7))
    assert cache.see(kinds.SERVING, serving(version=7)) is None
    assert cache.see(kinds.SERVING, serving(version=6, generation=9)) is None
    body = cache.serving("u1")
    assert body is not None
    assert body["metadata"]["generation"] == 1


def test_a_pod_of_which_nothing_changed_that_anybody_asks_for_is_no_news() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving())
    pod = child("p", kind=kinds.POD, uid="p")
    assert cache.see(kinds.POD, {**pod, "spec": {"nodeName": "n", "containers": []}, "status": {"a": 1}}) == News("u1")
    pod = child("p", kind=kinds.POD, uid="p", version=3)
    assert cache.see(kinds.POD, {**pod, "spec": {"nodeName": "n", "containers": [1]}, "status": {"a": 1}}) is None
    pod = child("p", kind=kinds.POD, uid="p", version=4)
    assert cache.see(kinds.POD, {**pod, "spec": {"nodeName": "n"}, "status": {"a": 2}}) == News("u1")
    (found,) = cache.members("u1").pods
    assert (found["spec"], found["status"]) == ({"nodeName": "n"}, {"a": 2})
    assert cache.see(kinds.POD, {**child("p", kind=kinds.POD, uid="p", version=3), "status": {"a": 1}}) is None, "late"


def test_what_is_asked_for_is_nobody_elses() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving(annotations={"a": "b"}))
    cache.see(SERVICE, child())
    for body in (cache.serving("u1"), cache.members("u1").children["Service", "llama-gateway"]):
        assert body is not None
        body["metadata"].clear()
    assert cache.serving("u1") == serving(annotations={"a": "b"})
    assert cache.members("u1").children == {("Service", "llama-gateway"): child()}


def test_children_pods_and_claims_are_news_about_their_serving_and_found_by_it() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving())
    assert cache.see(SERVICE, child()) == News("u1")
    assert cache.see(kinds.POD, child("llama-engine-0", kind=kinds.POD, uid="p")) == News("u1")
    assert cache.see(kinds.CLAIM, child("cache-llama-engine-0", kind=kinds.CLAIM, uid="q")) == News("u1")
    assert cache.see(SERVICE, child("other-gateway", uid="o", base="other")) is None
    members = cache.members("u1")
    assert list(members.children) == [("Service", "llama-gateway")]
    assert [pod["metadata"]["name"] for pod in members.pods] == ["llama-engine-0"]
    assert [claim["metadata"]["name"] for claim in members.claims] == ["cache-llama-engine-0"]


def test_a_child_that_somebody_relabelled_is_news_about_the_one_that_it_was_of() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving())
    cache.see(kinds.SERVING, serving("other", uid="u2"))
    cache.see(SERVICE, child())
    for base, version in (("nobody", 3), ("llama", 4), ("other", 5)):
        assert cache.see(SERVICE, child(base=base, version=version)) == News("u1")
        assert bool(cache.members("u1").children) == (base == "llama")
    assert cache.lose(SERVICE, child(base="other", version=6)) == News("u2")


def test_children_that_come_before_their_serving_are_its_own_once_it_comes() -> None:
    cache = Cache()
    assert cache.see(SERVICE, child()) is None
    cache.see(kinds.SERVING, serving())
    assert cache.members("u1").children


def test_long_names_find_their_children_by_the_base_name() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving("l" * 60))
    base = "l" * 31 + "-" + hashlib.sha256(b"l" * 60).hexdigest()[:8]
    assert cache.see(SERVICE, child(base=base)) == News("u1")


def test_who_manages_what_is_kept_where_plans_need_it() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving(managedFields=[{}]))
    cache.see(SERVICE, child())
    cache.see(kinds.POD, child("p", kind=kinds.POD, uid="p"))
    members = cache.members("u1")
    assert "managedFields" in members.children["Service", "llama-gateway"]["metadata"]
    assert "managedFields" not in members.pods[0]["metadata"]
    assert "managedFields" not in (cache.serving("u1") or {})["metadata"]


def test_a_late_answer_does_not_bring_back_what_was_deleted() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving())
    cache.see(SERVICE, child(version=2))
    assert cache.lose(SERVICE, child(version=9)) == News("u1")
    assert cache.see(SERVICE, child(version=5)) is None
    assert not cache.members("u1").children


def test_a_late_deletion_does_not_remove_its_successor() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving())
    cache.see(SERVICE, child(uid="old", version=2))
    cache.see(SERVICE, child(uid="new", version=9))
    assert cache.lose(SERVICE, child(uid="old", version=8)) is None
    assert cache.members("u1").children


def test_a_serving_that_was_deleted_and_made_again_is_another_one() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving(uid="u1"))
    cache.see(SERVICE, child())
    assert cache.lose(kinds.SERVING, serving(uid="u1", version=5)) == News("u1", gone=True)
    assert cache.serving("u1") is None
    assert cache.see(kinds.SERVING, serving(uid="u2", version=6)) == News("u2", edited=True)
    assert cache.members("u2").children, "whose they are is the plan's business"
    assert not cache.members("u1").children


def test_a_serving_made_again_unseen_replaces_the_old_one() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving(uid="u1"))
    assert cache.see(kinds.SERVING, serving(uid="u2", version=6)) == News("u2", edited=True)
    assert cache.uids() == ["u2"]


def test_a_list_removes_what_it_lacks_but_not_what_was_made_after_it() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving())
    cache.see(SERVICE, child("a", uid="a", version=3))
    cache.see(SERVICE, child("b", uid="b", version=20))
    cache.see(kinds.POD, child("p", kind=kinds.POD, uid="p", version=3))
    assert cache.retain(SERVICE, [], version="10") == [News("u1")]
    assert list(cache.members("u1").children) == [("Service", "b")]
    assert cache.members("u1").pods, "another kind"


def test_a_list_of_one_namespace_says_nothing_about_another() -> None:
    cache = Cache()
    cache.see(kinds.SERVING, serving())
    assert cache.retain(kinds.SERVING, [], version="10", namespace="elsewhere") == []
    assert cache.retain(kinds.SERVING, [], version="10", namespace="ns") == [News("u1", gone=True)]
    assert len(cache) == 0


@settings(deadline=None)
@given(data=st.data())
def test_lists_and_watches_in_any_interleaving_end_as_the_cluster_is(data: st.DataObject) -> None:
    """A cluster's history of creations, changes and deletions; a watch that misses a stretch and then lists."""
    cache, now, there = Cache(), 1, dict[str, Manifest]()
    cache.see(kinds.SERVING, serving(version=1))
    for step in range(data.draw(st.integers(0, 30))):
        now += 1
        name = data.draw(st.sampled_from("abc"))
        blind = data.draw(st.booleans())
        if name in there and data.draw(st.booleans()):
            gone = there.pop(name)
            gone = child(name, uid=gone["metadata"]["uid"], version=now)
            if not blind:
                cache.lose(SERVICE, gone)
        else:
            uid = there[name]["metadata"]["uid"] if name in there else f"{name}{step}"
            answer = child(name, uid=uid, version=now)
            there[name] = answer
            if not blind:
                cache.see(SERVICE, answer)
                if data.draw(st.booleans()):
                    cache.see(SERVICE, answer)
    for answer in there.values():
        cache.see(SERVICE, answer)
    cache.retain(SERVICE, [object_key(SERVICE, answer) for answer in there.values()], version=str(now))
    assert {key[1]: found["metadata"] for key, found in cache.members("u1").children.items()} == {
        name: answer["metadata"] for name, answer in there.items()
    }
    assert len(cache) == len(there) + 1
