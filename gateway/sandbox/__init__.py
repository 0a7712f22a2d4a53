"""What a server's processes may touch: profiles, the paths that programs need, and the walls made of them."""
