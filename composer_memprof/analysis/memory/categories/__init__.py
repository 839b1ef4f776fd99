"""The category of each block: parameter, gradient, activation, optimizer state, and the rules that decide it."""
