"""`lbg validate`: the validation client for a group's deliveries."""
