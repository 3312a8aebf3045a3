"""For `controller.gateway.service`, until it takes this from elsewhere."""

from shared.cli.local.addresses import is_surely_loopback as is_surely_loopback
