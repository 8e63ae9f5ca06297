"""Names of the children of an LLMServing. Pure."""

import hashlib
from dataclasses import dataclass
from typing import Final

MAX_BASE: Final = 40
"""With the longest suffix and a pod's ordinal it stays below 52: longer StatefulSet names break their pods' labels."""
_KEPT: Final = 31
_DIGITS: Final = 8


def base_name(name: str) -> str:
    """What the children of an LLMServing are named after: its name, or 31 characters of it and a hash of all of it."""
    if len(name) <= MAX_BASE:
        return name
    return f"{name[:_KEPT]}-{hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]}"


@dataclass(frozen=True, slots=True)
class Names:
    """Each suffix is one word, and each child has one: children of two servings never meet."""

    base: str

    @classmethod
    def of(cls, serving_name: str) -> "Names":
        """The children's names of an LLMServing."""
        return cls(base_name(serving_name))

    @property
    def engine(self) -> str:
        """StatefulSet, headless Service, PodDisruptionBudget and NetworkPolicy of the engines."""
        return f"{self.base}-engine"

    @property
    def gateway(self) -> str:
        """Deployment, Service, ServiceAccount and so on of Envoy and picker (or the picker alone)."""
        return f"{self.base}-gateway"

    @property
    def picker(self) -> str:
        """ConfigMap, Role and RoleBinding of the picker."""
        return f"{self.base}-picker"

    @property
    def pool(self) -> str:
        """InferencePool."""
        return f"{self.base}-pool"

    @property
    def route(self) -> str:
        """HTTPRoute."""
        return f"{self.base}-route"

    @property
    def monitor(self) -> str:
        """PodMonitor."""
        return f"{self.base}-monitor"
