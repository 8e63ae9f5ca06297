"""`spec.routing` and `spec.gateway`: the choice among the engines, and what makes it. Pure."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from halffull_operator.shape import ListOf, Rule, Words
from halffull_operator.spec_types import (
    AnnotationValue,
    DNSLabel,
    FreeForm,
    LabelKey,
    ObjectName,
    Strict,
    only,
)

_PATH = r"/[^*?#\s]*"
_HOST = r"(?:\*\.)?[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?"


class Routing(Strict, frozen=True, kw_only=True):
    """The choice among the engines. A change reaches the pickers in under two seconds, without a restart."""

    policy: Annotated[
        Literal["SAL", "SALPlus", "LeastRequest", "RoundRobin", "Random"],
        Meta(
            description="SAL: where the request will be served soonest, by queue and KV cache; the default, as SALPlus "
            "was not better by more than 2% on simulated traffic that neither was tuned on. SALPlus: by decodes too "
            "and each engine's learned speed; for engines that are not alike. LeastRequest: Envoy's P2C. The last "
            "three need no picker."
        ),
    ] = "SAL"
    failure_mode: Annotated[
        Literal["FailOpen", "FailClose"],
        Meta(description="Without a picker: FailOpen routes by P2C, FailClose answers 503."),
    ] = "FailOpen"


class TLS(Strict, frozen=True, kw_only=True):
    """The gateway's certificate."""

    secret_name: Annotated[
        ObjectName,
        Meta(description="A Secret of type kubernetes.io/tls. A renewed certificate is taken without a restart."),
    ]


class Service(Strict, frozen=True, kw_only=True):
    """The gateway's Service."""

    type: Annotated[Literal["ClusterIP", "NodePort", "LoadBalancer"], Meta(description="Type of the Service.")] = (
        "ClusterIP"
    )
    annotations: Annotated[
        dict[LabelKey, AnnotationValue],
        Meta(max_length=32, description="Annotations of the Service, for a cloud's load balancer."),
    ] = msgspec.field(default_factory=dict)


class Managed(Strict, frozen=True, kw_only=True):
    """The managed gateway: Envoy and picker in each pod."""

    replicas: Annotated[int, Meta(ge=1, le=100, description="Number of gateway pods. Pickers share no state.")] = 2
    service: Annotated[Service, Meta(description="The Service that clients use, port 80 (443 with TLS).")] = Service()
    tls: Annotated[TLS | None, Meta(description="Serve HTTPS.")] = None
    paths: Annotated[
        tuple[
            Annotated[
                str,
                Meta(pattern=only(rf"{_PATH}\*?"), max_length=256),
                Words("a path such as /health, or all below one such as /v1/*"),
            ],
            ...,
        ],
        Meta(
            min_length=1,
            max_length=64,
            description="What is let through; * at the end means all below. vLLM's control endpoints ignore API keys.",
        ),
        ListOf("set"),
    ] = ("/v1/*", "/health")
    pod_template: Annotated[
        FreeForm,
        Meta(description="Escape hatch, as engine.podTemplate. The containers are named envoy and (init) picker."),
    ] = msgspec.field(default_factory=dict)


class ParentRef(Strict, frozen=True, kw_only=True):
    """A Gateway of one's own, as in an HTTPRoute."""

    name: Annotated[ObjectName, Meta(description="Name of the Gateway.")]
    namespace: Annotated[DNSLabel | None, Meta(description="Its namespace; without one the LLMServing's.")] = None
    group: Annotated[
        Annotated[
            str, Meta(pattern=only(r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)?"), max_length=253), Words("an API group")
        ],
        Meta(description="API group of the parent."),
    ] = "gateway.networking.k8s.io"
    kind: Annotated[
        Annotated[
            str,
            Meta(pattern=only(r"[A-Za-z](?:[-A-Za-z0-9]*[A-Za-z0-9])?"), max_length=63),
            Words("a kind such as Gateway"),
        ],
        Meta(description="Kind of the parent."),
    ] = "Gateway"
    section_name: Annotated[ObjectName | None, Meta(description="One listener of it; without one all.")] = None
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None, Meta(description="Its listeners on this port only.")
    ] = None


class Route(Strict, frozen=True, kw_only=True):
    """An HTTPRoute on a gateway of one's own: below /NAMESPACE/NAME, and by the header X-Gateway-Model-Name."""

    parent_refs: Annotated[
        tuple[ParentRef, ...], Meta(min_length=1, max_length=8, description="The Gateways that route here.")
    ]
    hostnames: Annotated[
        tuple[
            Annotated[
                str,
                Meta(pattern=only(_HOST), max_length=253),
                Words("a host name such as llm.example.com or *.example.com"),
            ],
            ...,
        ],
        Meta(
            max_length=16,
            description="Host names. With them, and without pathPrefix, all their requests come here.",
        ),
        ListOf("set"),
    ] = ()
    path_prefix: Annotated[
        Annotated[
            str,
            Meta(pattern=only(r"/(?:[-A-Za-z0-9._~]+(?:/[-A-Za-z0-9._~]+)*)?"), max_length=256),
            Words("a path such as /llama, without / at the end"),
        ]
        | None,
        Meta(description="Requests below this path come here too, without it: /llama/v1/models is /v1/models."),
    ] = None


class Gateway(Strict, frozen=True, kw_only=True):
    """What stands in front of the engines."""

    mode: Annotated[
        Literal["Managed", "InferencePool", "None"],
        Meta(
            description="Managed: Envoy with the picker. InferencePool: the picker alone, as the endpoint picker of an "
            "InferencePool, for a gateway that knows it. None: engines only."
        ),
    ] = "Managed"
    managed: Annotated[Managed | None, Meta(description="The managed gateway; only with mode Managed.")] = None
    route: Annotated[
        Route | None,
        Meta(
            description="An HTTPRoute on a gateway of one's own; with mode Managed or InferencePool. It takes requests "
            "below /NAMESPACE/NAME, and those whose header X-Gateway-Model-Name is a served name."
        ),
    ] = None
    RULES = (
        Rule(
            "!has(self.managed) || self.mode == 'Managed'",
            "gateway.managed has no meaning in this gateway.mode: remove gateway.managed, or write mode: Managed",
            lambda self: self.managed is None or self.mode == "Managed",
        ),
        Rule(
            "!has(self.route) || self.mode != 'None'",
            "gateway.route needs a gateway to route to: remove it, or write mode: Managed or InferencePool",
            lambda self: self.route is None or self.mode != "None",
        ),
    )

    @property
    def effective(self) -> Managed:
        """The managed gateway's settings, defaults where nothing is written."""
        return self.managed or Managed()
