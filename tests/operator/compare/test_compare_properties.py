"""For any manifest: what a server stores satisfies it; one changed, removed or left-over field does not."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from halffull_operator.compare import differences, quantity
from halffull_operator.ownership import our_fields, project
from tests.operator.compare.server import AS_ONE, stored

NAMES = st.sampled_from(["alpha", "beta", "gamma", "delta", "selector"])
SCALARS = st.one_of(st.booleans(), st.integers(-3, 3), st.sampled_from(["", "a", "1", "2Gi"]))


def keyed(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    item = st.dictionaries(NAMES, values, max_size=3)
    return st.dictionaries(st.sampled_from(["x", "y", "z"]), item, max_size=3).map(
        lambda items: [{"name": name, **rest} for name, rest in items.items()]
    )


VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner, max_size=3),
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["env", "containers"]), keyed(inner), max_size=2),
    ),
    max_leaves=12,
)
SPECS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=4)


def manifest(spec: Any) -> dict[str, Any]:
    return {"kind": "Thing", "metadata": {"name": "t"}, "spec": spec}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path to something, as keys and indices."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [place for key, inner in value.items() for place in places(inner, (*path, key))]
    elif isinstance(value, list):
        found += [place for index, inner in enumerate(value) for place in places(inner, (*path, index))]
    return found


def parent(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path[:-1]:
        value = value[step]
    return value


@given(SPECS)
def test_what_was_applied_satisfies_itself(spec: Any) -> None:
    wanted = manifest(spec)
    assert differences(wanted, stored(wanted)) == ()


@given(SPECS, st.data())
def test_additions_outside_single_values_stay(spec: Any, data: st.DataObject) -> None:
    wanted = manifest(spec)
    live = stored(wanted)
    granular = [
        (),
        *(place for place in places(spec) if not any(isinstance(step, int) or step in AS_ONE for step in place)),
    ]
    maps = [place for place in granular if isinstance(parent(spec, (*place, "")), dict)]
    parent(live["spec"], (*data.draw(st.sampled_from(maps)), ""))["foreign"] = 1
    assert differences(wanted, live) == ()


@given(SPECS, st.data())
def test_a_changed_value_is_found(spec: Any, data: st.DataObject) -> None:
    wanted = manifest(spec)
    live = stored(wanted)
    place = data.draw(st.sampled_from(places(spec)))
    if place[-1] == "name":
        return  # an item renamed is an item gone and another added: the tests of rules have it
    parent(live["spec"], place)[place[-1]] = "changed"
    assert differences(wanted, live) != ()


@given(SPECS, st.data())
def test_a_field_no_longer_wanted_is_found(spec: Any, data: st.DataObject) -> None:
    before = manifest(spec)
    wanted = copy.deepcopy(before)
    fields = [place for place in places(spec) if isinstance(place[-1], str) and place[-1] != "name"]
    outside = [place for place in fields if not any(isinstance(step, int) or step in AS_ONE for step in place[:-1])]
    place = data.draw(st.sampled_from(outside))
    del parent(wanted["spec"], place)[place[-1]]
    assert differences(wanted, stored(before)) != ()


@given(SPECS)
def test_the_projection_on_what_we_own_is_what_we_applied(spec: Any) -> None:
    wanted = manifest(spec)
    live = stored(wanted)
    live["spec"]["foreign"] = {"a": [1]}
    node = our_fields(live)
    assert node is not None
    assert project(live["spec"], node["f:spec"]) == spec


@given(st.integers(0, 10**6), st.sampled_from(["k", "M", "G", "T"]), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_quantities_scale(number: int, decimal: str, binary: str) -> None:
    assert quantity(f"{number}{decimal}") == number * 1000 ** ("kMGT".index(decimal) + 1)
    assert quantity(f"{number}{binary}") == number * 1024 ** ("KMGT".index(binary[0]) + 1)
    assert quantity(f"{number}000m") == number == quantity(number)
