"""GRPO and GSPO, written out to be read. Nothing here draws, and nothing here starts a process.

Read it in this order:

    train.py       the whole loop, from top to bottom: open this first
    task.py        prompts with a right answer, and the reward that checks one
    policy.py      load a model; the log-probabilities of the tokens it was sampled
    rollout.py     sample a group of completions for each prompt
    advantage.py   how much better is a completion than the others of its group?
    loss.py        the clipped loss of GRPO and of GSPO, token by token
    kl.py          estimators of the KL to the reference
    grads.py       what happens to gradients and parameters: clip, guard, health, restore
    exam.py        the chance of a right answer, exactly, on prompts that no run trains on
"""
