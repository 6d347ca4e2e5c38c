"""Traffic on small Clos fabrics in the notation `A:0>2@1` (collective A, host 0 to host 2, over spine 1), and
exhaustive search over its routes. Shares no code with the routers or the metric."""

from __future__ import annotations

import itertools
from fractions import Fraction

from teccl_msccl.routing.fabric import Clos
from teccl_msccl.routing.traffic import Flow, Traffic


def traffic(tors, spines, hosts, text, **fabric):
    """Traffic and its routes from `A:0>2@1 w2, …`."""
    flows, routes = [], []
    for item in text.split(","):
        words = item.split()
        name, ends = words[0].split(":")
        ends, _, spine = ends.partition("@")
        src, dst = map(int, ends.split(">"))
        weight = Fraction(words[1][1:]) if len(words) > 1 else Fraction(1)
        flows.append(Flow(name, src, dst, weight, job=name))
        routes.append(int(spine) if spine else (None if src // hosts == dst // hosts else 0))
    return Traffic(Clos(tors, spines, hosts, **fabric), tuple(flows)), routes


def link_names(traffic, flow, spine):
    """The links that a flow crosses, by names of our own."""
    hosts = traffic.fabric.hosts_per_tor
    source, target = flow.src // hosts, flow.dst // hosts
    names = [("host_up", flow.src), ("host_down", flow.dst)]
    return names if source == target else [*names, ("up", source, spine), ("down", target, spine)]


def every_routing(traffic):
    """All routes of unit-capacity traffic over the spines that are not dead."""
    hosts = traffic.fabric.hosts_per_tor
    live = [s for s in range(traffic.fabric.spines) if s not in traffic.fabric.dead_spines]
    choices = [[None] if f.src // hosts == f.dst // hosts else live for f in traffic.flows]
    return itertools.product(*choices)


def load_of(traffic, routes):
    """The largest number (weight) of flows on a link between ToRs and spines."""
    load = {}
    for flow, spine in zip(traffic.flows, routes, strict=True):
        for link in link_names(traffic, flow, spine):
            if link[0] in ("up", "down"):
                load[link] = load.get(link, 0) + flow.weight
    return max(load.values(), default=Fraction(0))


def two_layer_rates(traffic, routes):
    """x_j by the definition, unit capacities: raise all rates together, freeze who is on a full link, repeat."""
    names = list(dict.fromkeys(flow.collective for flow in traffic.flows))
    on = {}
    for flow, spine in zip(traffic.flows, routes, strict=True):
        for link in link_names(traffic, flow, spine):
            shares = on.setdefault(link, {})
            shares[flow.collective] = shares.get(flow.collective, 0) + flow.weight
    rate = {}
    while len(rate) < len(names):
        level = {}
        for link, shares in on.items():
            growing = sum(weight for name, weight in shares.items() if name not in rate)
            used = sum((weight * rate[name] for name, weight in shares.items() if name in rate), Fraction(0))
            if growing:
                level[link] = (1 - used) / growing
        lowest = min(level.values())
        frozen = {n for link, value in level.items() if value == lowest for n in on[link] if n not in rate}
        rate |= dict.fromkeys(frozen, lowest)
    return {name: rate[name] for name in names}


def max_min_flow_rates(traffic, routes):
    """Per-flow max-min rates, as two-layer rates of flows that are collectives of their own."""
    alone = tuple(Flow(str(i), f.src, f.dst, Fraction(1)) for i, f in enumerate(traffic.flows))
    return list(two_layer_rates(Traffic(traffic.fabric, alone), routes).values())
