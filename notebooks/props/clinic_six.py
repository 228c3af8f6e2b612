"""The six messages that a reader of the clinic sorts: public threads, and why each answer is right or wrong."""

CANNOT = "the message cannot tell"
# source -> the answer, why it is right, and what each wrong one would need
SIX = {
    "huggingface/trl#5750": (
        "another owner",
        "Free, allocated and unallocated are 4.1 GiB together; the card has 14.7. The rest is somebody else's: TRL's "
        "tests ran in several processes on one card.",
        {
            "fragments": "Only 0.07 GiB are unallocated: there is nothing to be in pieces.",
            "tensors": "This process has 3.3 GiB in tensors, on a card of 14.7.",
            CANNOT: "Free, allocated and unallocated are all there: add them up.",
        },
    ),
    "pytorch/pytorch#31353": (
        "fragments",
        "5.1 GiB are unallocated, and 1.9 are refused: there is room enough, in pieces. The reporter calls it probably "
        "fragmentation; with empty_cache() the largest batch rose from 226 to over 256, and the run became much slower.",
        {
            "another owner": "Free, allocated and unallocated add up to nearly the whole card.",
            "tensors": "So it would be if what is free and unallocated were less than what was asked.",
            CANNOT: "All five numbers are there, and the request would fit into what is unallocated.",
        },
    ),
    "hiyouga/LlamaFactory#182": (
        "another owner",
        "5.2 GiB are this process's, on a full card of 31.8. The reporter's setting for GPU 5 had been overwritten by a "
        "later command; that the others on GPU 0 were in the way follows from the sum.",
        {
            "fragments": "Reserved and allocated are the same to 0.01 GiB: about nothing is unallocated.",
            "tensors": "26 GiB of the card are not this process's.",
            CANNOT: "All five numbers are there: add them up.",
        },
    ),
    "NVIDIA/mellotron#24": (
        "tensors",
        "10.8 of 11.2 GiB are in tensors, and 54 MiB are unallocated: the card is full. The reporter found some texts of "
        "the data set to be the cause.",
        {
            "another owner": "All but 0.3 GiB of the card are this process's.",
            "fragments": "2 MiB is what PyTorch asks the driver for, to serve a tensor of 1 MiB or less. Such tensors "
            "have a pool of their own; the 54 MiB may all lie in the other.",
            CANNOT: "Nobody else is there, and half a per cent of the card is in pieces.",
        },
    ),
    "zsyOAOA/ResShift#4": (
        "tensors",
        "128 GiB were asked for, and the card has 24: an empty card would have refused it, too.",
        {
            "another owner": "With nobody else there it would be refused just the same.",
            "fragments": "With everything in one piece it would be refused just the same.",
            CANNOT: "The request alone is larger than the card.",
        },
    ),
    "SemiAnalysisAI/InferenceX#1461": (
        CANNOT,
        "Nobody else is there: this process has 138.8 of 139.8 GiB. How much of it is in tensors and how much in pieces "
        "stands in the part that the thread does not quote. `labkit.memory.owner` says so, too: paste the whole message.",
        {
            "another owner": "All but 1 GiB of the card is free or this process's.",
            "fragments": "It may be: the number that would say so is not quoted.",
            "tensors": "It may be, and the thread says so from other measurements. The message does not.",
        },
    ),
}
