"""What hostile servers do. Each public function is one behaviour, takes the facts that the harness gives, and returns
what it got; an exception is what it met. The harness measures the effect from outside wherever there is one."""
