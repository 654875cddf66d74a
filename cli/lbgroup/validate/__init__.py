"""`lbg validate`: the validation client for what a group delivers."""
