# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT

.PHONY: check-model
check-model:
	$(Q)TEST_SECONDS=1800 tests/prove model tests/model/run

CHECKS += check-model
