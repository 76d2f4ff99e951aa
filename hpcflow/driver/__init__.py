"""The single controller: the training loop over worker groups. Owns no process group."""
