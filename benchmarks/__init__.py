"""What speed, memory and exactness are worth: ratios measured in one run against a named peer or limit."""
