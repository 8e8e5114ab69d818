-- Health of an OffsetReset for Argo CD, by its phase: Healthy once it has succeeded, Degraded when it failed or its group
-- was deleted meanwhile, Progressing otherwise. Edits after the end do not matter.
-- Base library only: Argo CD opens neither `string` nor `math`.

local metadata = obj.metadata or {}
local status = obj.status or {}

local message = status.phase or ""
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Complete" then
    message = (condition.reason or "Complete") .. ": " .. (condition.message or "")
  end
end

if metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "being deleted" }
end
if status.phase == "Succeeded" then
  return { status = "Healthy", message = message }
end
if status.phase == "Failed" or status.phase == "Cancelled" then
  return { status = "Degraded", message = message }
end
if status.phase == nil or (status.observedGeneration or -1) < (metadata.generation or 0) then
  return { status = "Progressing", message = "the operator has not seen this generation yet" }
end
return { status = "Progressing", message = message }
