"""The mathematics of reinforcement learning: pure functions of tensors.

Nothing here holds a process, a model, a file or a random state, and nothing imports the rest of
hpcflow: `algorithms` takes tensors and floats and gives tensors and floats.

Names of tensors end in the letters of their shape:

    B   rows (samples: one prompt with one response)
    T   token positions of a row: prompt, response, padding on the right
    V   vocabulary
    N   the trainable tokens of a batch, in row-major order

so `logprobs_BT` is (rows, tokens) and `scores_B` is one number per row. A number is indexed by the
token it is about: `logprobs_BT[b, t]` is the log-probability of token t given the tokens before
it, and `values_BT[b, t]` is the value of the state before token t was sampled. `mask_BT` is True
on the tokens that train: those the policy sampled.

Two rules hold in every function:

* Masks select, they do not multiply, and they do so before any operation that may be non-finite:
  whatever stands under mask False (NaN, infinity, a stale value) reaches no loss and no gradient.
* A loss is a sum over trainable tokens, divided once by a count of the whole global batch, which
  the caller gives. So losses and gradients add up over micro-batches and ranks.
"""
