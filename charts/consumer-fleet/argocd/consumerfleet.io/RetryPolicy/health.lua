-- Health of a RetryPolicy for Argo CD: Healthy once accepted, Degraded when refused, Progressing before.
-- Base library only: Argo CD opens neither `string` nor `math`.

local metadata = obj.metadata or {}
local status = obj.status or {}

local ready
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Ready" then
    ready = condition
  end
end

if metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "being deleted" }
end
if ready == nil or (status.observedGeneration or -1) < (metadata.generation or 0) then
  return { status = "Progressing", message = "the operator has not seen this generation yet" }
end
if ready.status == "True" then
  return { status = "Healthy", message = ready.message or "" }
end

local message = (ready.reason or "Ready") .. ": " .. (ready.message or "")
if ready.status == "False" then
  return { status = "Degraded", message = message }
end
return { status = "Progressing", message = message }
