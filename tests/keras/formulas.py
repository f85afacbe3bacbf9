"""One step of LARS, LAMB and NovoGrad in NumPy, as the papers write it.

Each takes weights, gradient, the number of the step from 1, a dictionary for what it keeps, the weight decay, and whether
the layer's norms count; and returns the new weights.
"""

import numpy as np

RATE = float(np.float32(0.2))  # which Keras holds in float32


def norm(x):
    return np.sqrt((x**2).sum())


def lars(w, g, t, state, d, adapt, momentum=0.9, trust_coefficient=0.001, epsilon=0.0, nesterov=False):
    """Algorithm 1 of You et al. 2017: local rate, then momentum with it."""
    usable = adapt and norm(w) > 0 and norm(g) > 0
    local = trust_coefficient * norm(w) / (norm(g) + d * norm(w) + epsilon) if usable else 1.0
    step = RATE * local * (g + d * w)
    state["v"] = momentum * state.get("v", 0) + step
    return w - (momentum * state["v"] + step if nesterov else state["v"])


def lamb(w, g, t, state, d, adapt, beta_1=0.9, beta_2=0.999, epsilon=1e-6):
    """Algorithm 2 of You et al. 2020."""
    state["m"] = beta_1 * state.get("m", 0) + (1 - beta_1) * g
    state["v"] = beta_2 * state.get("v", 0) + (1 - beta_2) * g**2
    r = state["m"] / (1 - beta_1**t) / (np.sqrt(state["v"] / (1 - beta_2**t)) + epsilon)
    update = r + d * w
    ratio = norm(w) / norm(update) if adapt and norm(w) > 0 and norm(update) > 0 else 1.0
    return w - RATE * ratio * update


def novograd(w, g, t, state, d, adapt, beta_1=0.95, beta_2=0.98, epsilon=1e-8, grad_averaging=False):
    """Algorithm 1 of Ginsburg et al. 2019: v and m start from the first gradient."""
    state["v"] = norm(g) ** 2 if t == 1 else beta_2 * state["v"] + (1 - beta_2) * norm(g) ** 2
    new = g / (np.sqrt(state["v"]) + epsilon) + d * w
    new = (1 - beta_1) * new if grad_averaging and t > 1 else new
    state["m"] = new if t == 1 else beta_1 * state["m"] + new
    return w - RATE * state["m"]
