// StoredJob of tests/unit/recovery, under this floor's name.
#pragma once

#include "tests/unit/actors/job_fixture.h"
#include "tests/unit/recovery/stored_job.h"
