"""What a person runs: the `rlscale` command and the measurements of this project's own speed."""
