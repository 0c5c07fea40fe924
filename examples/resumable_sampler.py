"""A sampler that can say where it is: shuffled anew each epoch, every rank takes its share, the position is two numbers."""
import torch


class ResumableSampler(torch.utils.data.Sampler):
    def __init__(self, size, rank, world, seed):
        self.size, self.rank, self.world, self.seed = size, rank, world, seed
        self.epoch = 0
        self.position = 0  # samples of this epoch that were handed out

    def __len__(self):
        return self.size // self.world

    def __iter__(self):
        """The rest of the current epoch. Exact as long as nothing reads ahead: DataLoader with num_workers=0."""
        shuffled = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        mine = shuffled[self.rank::self.world].tolist()[:len(self)]
        while self.position < len(mine):
            self.position += 1
            yield mine[self.position - 1]
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state):
        self.epoch, self.position = state["epoch"], state["position"]
