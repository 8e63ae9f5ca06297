"""Progressing: what rolls and why, and what to undo when it halts."""

from halffull_operator.plan import Apply, plan
from halffull_operator.rolling import BECAUSE
from tests.operator.plan.world import World, at, body, engine_pod, engine_set, gateway, gateway_service
from tests.operator.status.reading import CRASHED, message, next_look, said, verdicts


class TestRoll:
    def rolling(self) -> World:
        world = World(body=body(replicas=4), manifests=[engine_set(replicas=4), gateway(), gateway_service()])
        world.engines["status"]["updateRevision"] = "r-2"
        world.engines["metadata"]["annotations"][BECAUSE] = "args --max-num-seqs"
        world.manifests[0]["metadata"]["annotations"][BECAUSE] = "args --max-num-seqs"
        world.engine_fields()["f:metadata"]["f:annotations"][f"f:{BECAUSE}"] = {}
        world.pods[:2] = [
            engine_pod(0),
            engine_pod(1),
            engine_pod(2),
            engine_pod(3, revision="r-2", ready=False, age=60),
        ]
        return world

    def test_it_says_what_rolls_and_why(self) -> None:
        found = said(self.rolling(), after=70)
        assert verdicts(found)["Ready"] == ("True", "Serving")
        assert verdicts(found)["EnginesReady"] == ("False", "ModelLoading")
        assert verdicts(found)["Progressing"] == ("True", "RollingOut")
        assert message(found, "Progressing") == (
            "1 of 4 engines are at the newest revision; changed: args --max-num-seqs; 3 of 4 engines are ready; "
            "llama-engine-3: loads the model for less than a minute (last step less than a minute ago)"
        )
        assert found["updatedReplicas"] == 1

    def test_between_two_pods_it_is_still_rolling(self) -> None:
        world = self.rolling()
        world.pods[3] = engine_pod(3, revision="r-2", age=60)
        found = said(world, after=70)
        assert verdicts(found)["EnginesReady"] == ("False", "RollingOut")
        assert (
            message(found, "EnginesReady") == "1 of 4 engines are at the newest revision; changed: args --max-num-seqs"
        )
        assert verdicts(found)["Progressing"] == ("True", "RollingOut")

    def test_when_it_halts_it_says_what_to_undo(self) -> None:
        world = self.rolling()
        world.pods[3] = engine_pod(3, revision="r-2", ready=False, age=60, containerStatuses=CRASHED)
        world.body["spec"]["rollout"] = {"progressDeadline": "30m"}
        assert verdicts(said(world, after=60 + 1799))["Progressing"] == ("True", "RollingOut")
        found = said(world, after=60 + 1801)
        assert verdicts(found)["Progressing"] == ("False", "ProgressDeadlineExceeded")
        assert message(found, "Progressing") == (
            "nothing has gone forward for over 30 minutes: 3 of 4 engines are ready; llama-engine-3: exit code 1: "
            "ValueError: bad. To go back, undo the last change of the LLMServing (args --max-num-seqs); "
            "3 of 4 engines still serve with what was before"
        )
        assert verdicts(found)["Ready"] == ("True", "Serving")

    def test_ready_does_not_flap(self) -> None:
        world = self.rolling()
        seen = set()
        for number in (3, 2, 1, 0):
            for pod in (None, engine_pod(number, revision="r-2", ready=False), engine_pod(number, revision="r-2")):
                world.pods = [one for one in world.pods if one["metadata"]["name"] != f"llama-engine-{number}"]
                world.pods += [pod] if pod else []
                seen.add(verdicts(said(world))["Ready"])
        assert seen == {("True", "Serving")}
        world.engines["status"]["currentRevision"] = "r-2"
        assert verdicts(said(world))["EnginesReady"] == ("True", "AllReady")

    def test_the_only_engine_that_never_gets_ready_again_is_a_roll_that_halts_too(self) -> None:
        world = World(body=body(replicas=1), manifests=[engine_set(replicas=1), gateway(), gateway_service()])
        # The StatefulSet calls it complete as soon as it counts no pod.
        world.engines["status"] |= {"updateRevision": "r-2", "currentRevision": "r-2"}
        world.engines["metadata"]["annotations"][BECAUSE] = "args --max-num-seqs"
        world.engine_fields()["f:metadata"]["f:annotations"][f"f:{BECAUSE}"] = {}
        world.pods[:2] = []
        assert verdicts(said(world))["Ready"] == ("False", "RollingOut")
        assert verdicts(said(world))["Progressing"] == ("True", "RollingOut")
        world.pods.append(engine_pod(0, revision="r-2", ready=False, containerStatuses=CRASHED))
        assert verdicts(said(world))["Progressing"] == ("True", "RollingOut")
        told = message(said(world, after=3601), "Progressing")
        assert told.endswith("To go back, undo the last change of the LLMServing (args --max-num-seqs)")
        world.pods[-1] = engine_pod(0, revision="r-2")
        (action,) = plan(world.serving, world.children, world.observed, full=False)
        assert isinstance(action, Apply)
        assert BECAUSE not in action.manifest["metadata"]["annotations"], "a later trouble is not of this roll"
        del world.engines["metadata"]["annotations"][BECAUSE]
        del world.engine_fields()["f:metadata"]["f:annotations"][f"f:{BECAUSE}"]
        assert verdicts(said(world))["Progressing"] == ("True", "Complete")
        world.pods.pop()
        assert verdicts(said(world))["Progressing"] == ("True", "Scaling")

    def test_a_single_engine_that_is_being_replaced_is_honestly_not_ready(self) -> None:
        world = World(body=body(replicas=1), manifests=[engine_set(replicas=1), gateway(), gateway_service()])
        world.pods.pop(1)
        world.pods[0]["metadata"]["deletionTimestamp"] = at(1000)
        found = said(world)
        assert verdicts(found)["Ready"] == ("False", "RollingOut")
        assert found["replicas"] == 0


class TestDeadline:
    def test_any_step_forward_starts_it_anew(self) -> None:
        world = World()
        world.pods[1] = engine_pod(1, ready=False)
        assert verdicts(said(world, after=3601))["Progressing"][0] == "False"
        world.pods[0] = engine_pod(0, age=100)
        assert verdicts(said(world, after=3601))["Progressing"][0] == "True"
        assert verdicts(said(world, after=3701))["Progressing"][0] == "False"

    def test_an_edit_starts_it_anew(self) -> None:
        world = World()
        world.pods.pop(1)
        world.engines["metadata"]["managedFields"][0]["time"] = at(5000)
        assert verdicts(said(world, after=5010))["Progressing"] == ("True", "Scaling")

    def test_the_time_of_the_next_change_is_known(self) -> None:
        world = World()
        world.pods[1] = engine_pod(1, ready=False)

        assert next_look(world, after=0) == 60
        after, found, writes = 0.0, said(world, after=0), 0
        while after < 86400:
            after += next_look(world, after=after) or 86400
            now = said(world, after=after)
            assert now != found
            found, writes = now, writes + 1
        assert writes <= 14  # in a day, for a pod that never gets ready
